"""Code that runs in the scheduler: the plugin and what it keeps and does."""
