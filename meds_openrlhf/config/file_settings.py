"""Settings of OpenRLHF that may name files of this machine, and how such a name is told from one on a hub."""

FILE_SETTINGS = (
    *("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"),
    *("data.prompt_dataset", "eval.dataset", "reward.remote_url", "train.agent_func_path"),
)
DATA_SUFFIXES = frozenset({".json", ".jsonl", ".csv", ".parquet", ".arrow"})
