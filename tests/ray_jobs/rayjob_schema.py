"""The fields of KubeRay's RayJob (ray.io/v1) that the manifests use, with their types and which of them must be there.

Written from KubeRay's API types and custom resource definition; a field that is not listed here is a misspelt one
until it is looked up there.
"""

from typing import Any

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}
NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$"}


def fields(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object with these fields and no others; ``required`` names some, parted by spaces."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def listed(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


TEXTS = {"type": "object", "additionalProperties": TEXT}  # a map of text to text: a bare number or true is refused
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
CONTAINER = fields(
    "name image resources",
    name=NAME,
    image=TEXT,
    ports=listed(fields("containerPort", containerPort=COUNT, name={**NAME, "maxLength": 15})),
    resources=fields("limits", requests=QUANTITIES, limits=QUANTITIES),
    env=listed(fields("name value", name=TEXT, value=TEXT)),
    envFrom=listed(fields("secretRef", secretRef=fields("name", name=NAME, optional={"type": "boolean"}))),
    volumeMounts=listed(fields("name mountPath", name=NAME, mountPath={"type": "string", "pattern": "^/"})),
)
VOLUME = fields(
    "name",
    name=NAME,
    persistentVolumeClaim=fields("claimName", claimName=NAME),
    emptyDir=fields("", medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
)
TOLERATION = fields(
    "", key=TEXT, operator={"enum": ["Exists", "Equal"]}, value=TEXT, effect={"enum": ["NoSchedule", "NoExecute"]}
)
TEMPLATE = fields(
    "spec",
    spec=fields("containers", containers=listed(CONTAINER), volumes=listed(VOLUME), tolerations=listed(TOLERATION)),
)
WORKERS = fields(
    "groupName minReplicas maxReplicas rayStartParams template",
    **{"groupName": NAME, "replicas": COUNT, "minReplicas": COUNT, "maxReplicas": COUNT},
    **{"rayStartParams": TEXTS, "template": TEMPLATE},
)
RAY_CLUSTER = fields(
    "headGroupSpec rayVersion",
    rayVersion=TEXT,
    headGroupSpec=fields("rayStartParams template", rayStartParams=TEXTS, template=TEMPLATE),
    workerGroupSpecs=listed(WORKERS),
)
RAY_JOB = fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=fields("name", name={**NAME, "maxLength": 47}),  # KubeRay adds suffixes to it
    spec=fields(
        "entrypoint rayClusterSpec",
        entrypoint=TEXT,
        backoffLimit=COUNT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        runtimeEnvYAML=TEXT,
        rayClusterSpec=RAY_CLUSTER,
    ),
)
