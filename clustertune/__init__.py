"""clustertune gets a Dask cluster ready for machine-learning training."""

from clustertune import errors as errors
from clustertune.diagnosis import check as check
from clustertune.holding import hold as hold
from clustertune.operations import release as release
from clustertune.operations import resize as resize
from clustertune.operations import restart as restart
from clustertune.operations import scale as scale
from clustertune.operations import trim as trim
from clustertune.preparation import last_report as last_report
from clustertune.preparation import prepare as prepare
from clustertune.prepared import Prepared as Prepared
from clustertune.report import Report as Report
from clustertune.resetting import Recreated as Recreated
from clustertune.resetting import reset as reset
from clustertune.saving import load as load
from clustertune.saving import save as save
from clustertune.sizing import Sizing as Sizing
from clustertune.sizing import size as size
from clustertune.watcher import Monitor as Monitor

__version__ = "0.1.0"
