"""The fields of Grafana's classic dashboard model that ours uses, with their types and which of them must be there.

Written from the schema that Grafana publishes for it (Dashboard, Panel, RowPanel, VariableModel; Prometheus queries);
a field that is not listed here is a misspelt one until it is looked up there.
"""

from typing import Any

from tests.ray_jobs.rayjob_schema import COUNT, TEXT, fields, listed

FLAG, ANY, LIST = {"type": "boolean"}, {"type": "object"}, {"type": "array"}
SWITCH = {"enum": [0, 1, 2]}
DATASOURCE = fields("type uid", type={"const": "prometheus"}, uid=TEXT)
CELLS = {"type": "integer", "minimum": 1, "maximum": 24}
GRID = fields("h w x y", h=CELLS, w=CELLS, x={"type": "integer", "minimum": 0, "maximum": 23}, y=COUNT)
TARGET = fields(
    "refId datasource expr legendFormat range instant",
    refId={"type": "string", "pattern": "^[A-Z]$"}, datasource=DATASOURCE, expr=TEXT, legendFormat=TEXT,
    range=FLAG, instant=FLAG,
)  # fmt: skip
DEFAULTS = fields("unit", unit={"enum": ["short", "bytes", "s"]}, min={"type": "number"}, custom=ANY)
PANEL = fields(
    "id type title gridPos datasource targets fieldConfig options",
    id=COUNT, type={"enum": ["stat", "timeseries"]}, title=TEXT, description=TEXT, gridPos=GRID,
    datasource=DATASOURCE, targets=listed(TARGET), options=ANY,
    fieldConfig=fields("defaults overrides", defaults=DEFAULTS, overrides=LIST),
)  # fmt: skip
ROW = fields(
    "id type collapsed panels", id=COUNT, type={"const": "row"}, title=TEXT, collapsed=FLAG, gridPos=GRID, panels=LIST
)
VARIABLE = fields(
    "type name",
    type={"enum": ["query", "datasource"]}, name=TEXT, label=TEXT, datasource=DATASOURCE, query=TEXT, regex=TEXT,
    allValue=TEXT, hide=SWITCH, refresh=SWITCH, sort=COUNT, multi=FLAG, includeAll=FLAG, options=LIST, current=ANY,
)  # fmt: skip
DASHBOARD: dict[str, Any] = fields(
    "uid title schemaVersion templating annotations panels",
    uid={"type": "string", "pattern": "^[a-zA-Z0-9_-]{8,40}$"}, title=TEXT, description=TEXT, tags=listed(TEXT),
    schemaVersion={"type": "integer", "minimum": 36, "maximum": 41}, version=COUNT, editable=FLAG,
    graphTooltip=SWITCH, refresh={"type": "string", "pattern": "^[0-9]+[smhd]$"}, timezone={"enum": ["browser", "utc"]},
    time=fields("from to", **{"from": TEXT, "to": TEXT}), annotations=fields("list", list=LIST), links=LIST,
    templating=fields("list", list=listed(VARIABLE)), panels=listed({"anyOf": [PANEL, ROW]}),
)  # fmt: skip
