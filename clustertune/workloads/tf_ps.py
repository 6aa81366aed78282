"""TensorFlow's ``ParameterServerStrategy``: workers train, parameter servers do not.

Steps are not taken together, so rows may be uneven. A parameter server holds no data:
name the workers that train in ``workers=``. Not tested: taken from TensorFlow's
documentation.
"""

from __future__ import annotations

from dataclasses import replace

from clustertune.workloads import tf_mirrored

PROFILE = replace(
    tf_mirrored.PROFILE,
    name="tf_ps",
    title="TensorFlow ParameterServerStrategy",
    exact_rows=False,
)
