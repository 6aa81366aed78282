"""What follows from a view: layouts, sizes, memory, prices, forecasts (pure)."""
