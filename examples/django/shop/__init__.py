"""Orders, and the stock that they take."""
