"""A head's job server that plays back what a test prescribes, a turn for each question."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from ray.job_submission import JobStatus


@dataclass
class Info:
    status: JobStatus
    driver_exit_code: int | None = None
    message: str | None = None


GONE = ConnectionError("no route to host")
UNKNOWN = RuntimeError("Request failed with status code 404: Job x does not exist.")
RUNNING = Info(JobStatus.RUNNING)
DONE = Info(JobStatus.SUCCEEDED, 0)


class FakeHead:
    """``connections``: for each time that the log is followed, the texts that come before it ends or breaks.

    ``statuses``: the answers about the job; the last one stays.
    """

    def __init__(
        self, connections: list[list[str | Exception]], statuses: list[Info | Exception], log: str = ""
    ) -> None:
        self._connections, self._statuses, self._log = connections, statuses, log

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        for text in self._connections.pop(0) if self._connections else [GONE]:
            if isinstance(text, Exception):
                raise text
            yield text

    def get_job_info(self, job_id: str) -> Info:
        answer = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_job_logs(self, job_id: str) -> str:
        if not self._log:
            raise GONE
        return self._log
