"""The network while it trains: gates, and the budget that presses on them."""
