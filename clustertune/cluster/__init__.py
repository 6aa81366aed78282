"""A live cluster: read by ``monitor``, and acted upon through ``live``, the port."""
