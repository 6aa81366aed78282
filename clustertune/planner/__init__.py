"""Pure decisions over a view: placement, chunking, forecast, guards, plan."""
