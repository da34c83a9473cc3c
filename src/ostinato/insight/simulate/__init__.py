"""What would a cache of some size, with some eviction policy, make of a trace?"""
