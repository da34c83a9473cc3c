"""The heart: which K/V is kept, for whom, and who may reuse it. Knows no model and no HTTP."""
