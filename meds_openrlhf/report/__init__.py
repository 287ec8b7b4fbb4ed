"""Report a run as one HTML file that needs no network: settings, curves, and the atlas of recurring errors."""

from meds_openrlhf.report.atlas import Limits
from meds_openrlhf.report.write import write_report

__all__ = ["Limits", "write_report"]
