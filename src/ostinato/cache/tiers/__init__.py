"""Levels below the device pool: RAM, disk and a remote server, under one contract (`base.KVTier`)."""
