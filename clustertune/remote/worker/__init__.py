"""Code that runs in workers and nannies.

``probe`` reads, ``process`` changes memory and size, ``park`` keeps keys during a
restart. ``content`` and ``partitions`` are tasks on partitions.
"""
