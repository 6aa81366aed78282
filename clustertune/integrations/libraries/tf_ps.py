"""TensorFlow with parameter servers: workers train, parameter servers do not.

Steps are not taken together, so rows may be uneven. A parameter server holds no data:
name the workers that train in ``workers=``, or have ``training.run_roles`` place it.
"""

from __future__ import annotations

from dataclasses import replace

from clustertune.integrations.libraries import tf_mirrored

PROFILE = replace(
    tf_mirrored.PROFILE,
    name="tf_ps",
    title="TensorFlow with parameter servers",
    exact_rows=False,
)
