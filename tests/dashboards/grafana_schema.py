"""The fields of Grafana's classic dashboard model that ours uses, with their types and which of them must be there.

Written from the schema that Grafana publishes for it (Dashboard, Panel, RowPanel, VariableModel; Prometheus queries);
a field that is not listed here is a misspelt one until it is looked up there.
"""

from typing import Any

from tests.ray_jobs.rayjob_schema import COUNT, TEXT, fields, listed

FLAG = {"type": "boolean"}
ANY = {"type": "object"}
TEXT_OR_TEXTS = {"anyOf": [TEXT, listed(TEXT)]}
DATASOURCE = fields("type uid", type={"const": "prometheus"}, uid=TEXT)
GRID = fields(
    "h w x y",
    h={"type": "integer", "minimum": 1},
    w={"type": "integer", "minimum": 1, "maximum": 24},
    x={"type": "integer", "minimum": 0, "maximum": 23},
    y=COUNT,
)
TARGET = fields(
    "refId datasource expr legendFormat",
    refId={"type": "string", "pattern": "^[A-Z]$"},
    datasource=DATASOURCE,
    expr=TEXT,
    legendFormat=TEXT,
    range=FLAG,
    instant=FLAG,
)
DEFAULTS = fields("unit", unit={"enum": ["short", "bytes", "s"]}, min={"type": "number"}, custom=ANY)
PANEL = fields(
    "id type title gridPos datasource targets fieldConfig options",
    id=COUNT,
    type={"enum": ["stat", "timeseries"]},
    title=TEXT,
    description=TEXT,
    gridPos=GRID,
    datasource=DATASOURCE,
    targets=listed(TARGET),
    fieldConfig=fields("defaults overrides", defaults=DEFAULTS, overrides={"type": "array"}),
    options=ANY,
)
ROW = fields(
    "id type collapsed panels",
    id=COUNT,
    type={"const": "row"},
    title=TEXT,
    collapsed=FLAG,
    gridPos=GRID,
    panels={"type": "array"},
)
VARIABLE = fields(
    "type name",
    type={"enum": ["query", "datasource"]},
    name=TEXT,
    label=TEXT,
    datasource=DATASOURCE,
    query=TEXT,
    regex=TEXT,
    allValue=TEXT,
    hide={"enum": [0, 1, 2]},
    refresh={"enum": [0, 1, 2]},
    sort={"enum": list(range(9))},
    multi=FLAG,
    includeAll=FLAG,
    options={"type": "array"},
    current=fields("text value", selected=FLAG, text=TEXT_OR_TEXTS, value=TEXT_OR_TEXTS),
)
DASHBOARD: dict[str, Any] = fields(
    "uid title schemaVersion templating annotations panels",
    uid={"type": "string", "pattern": "^[a-zA-Z0-9_-]{8,40}$"},
    title=TEXT,
    description=TEXT,
    tags=listed(TEXT),
    schemaVersion={"type": "integer", "minimum": 36, "maximum": 41},
    version=COUNT,
    editable=FLAG,
    graphTooltip={"enum": [0, 1, 2]},
    refresh={"type": "string", "pattern": "^[0-9]+[smhd]$"},
    timezone={"enum": ["browser", "utc"]},
    time=fields("from to", **{"from": TEXT, "to": TEXT}),
    annotations=fields("list", list={"type": "array"}),
    links={"type": "array"},
    templating=fields("list", list=listed(VARIABLE)),
    panels=listed({"anyOf": [PANEL, ROW]}),
)
