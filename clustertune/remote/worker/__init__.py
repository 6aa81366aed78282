"""Code that runs in workers and nannies.

``probe`` reads, ``process`` changes memory and size, ``park`` keeps keys during a
restart. ``content`` has tasks on partitions.
"""
