"""HTTP: dialects in, one `Backend` behind them."""
