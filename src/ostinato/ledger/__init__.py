"""What was used and what it costs: usage records, prices, the bill.

Knows no model, no engine and no HTTP; imports errors, clock, config and `cache.types` only.
"""
