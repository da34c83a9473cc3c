"""What lies below the device pool, measured: one prefix restored, many conversations, a restart."""
