"""The registry of the metrics that a coordinator and an agent export to Prometheus, and the samples made of it.

A process exports only samples that a metric of this registry has made (`ExportedMetric.of`), so that each name has one
meaning, and the same labels everywhere. `periplus/process/metrics_endpoint.py` serves samples; what the samples of a
process are, it says itself. `docs/exported-metrics.md` is generated from the registry. The values of a job's steps
have a registry of their own, in `telemetry.py`.

The number of series is bounded by what there is at a time: regions, pairs of regions and jobs that have not ended. A
job's id is the label `job_id`, since Prometheus gives every series a label `job` of its own.
"""

from dataclasses import dataclass
from types import MappingProxyType

from periplus.process.telemetry import MetricKind


@dataclass(frozen=True, slots=True)
class ExportedSample:
    """One value of an exported metric. `labels` are values in the order of the metric's labels."""

    metric: "ExportedMetric"
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """One entry of the registry: a metric's name as Prometheus sees it, meaning, labels and kind."""

    name: str
    sentence: str
    labels: tuple[str, ...] = ()
    kind: MetricKind = MetricKind.GAUGE

    def of(self, value: float, **labels: str) -> ExportedSample:
        """Return a sample of this metric. Raises: ValueError unless exactly the metric's labels are given."""
        if labels.keys() != set(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(labels)}")
        return ExportedSample(self, tuple(labels[name] for name in self.labels), float(value))


_COUNTER = MetricKind.COUNTER
_PAIR = ("src", "dst")
_JOB = ("job_id",)
_JOB_REGION = ("job_id", "region")

BUILD_INFO = ExportedMetric("periplus_build_info", "1, with the version of the process as a label.", ("version",))

# ---- the coordinator ------------------------------------------------------------------------------------------------
REGION_CONNECTED = ExportedMetric(
    "periplus_region_connected", "Whether the session of the region's agent is open: 1 or 0.", ("region",)
)
REGION_MODE = ExportedMetric(
    "periplus_region_mode",
    "1 for what operators let happen in the region: open, cordoned or drained.",
    ("region", "mode"),
)
REGION_SILENCE = ExportedMetric(
    "periplus_region_silence_seconds", "Time since the last message of the region's agent.", ("region",)
)
REGION_SESSIONS = ExportedMetric(
    "periplus_region_sessions_total", "Sessions that agents of the region have opened.", ("region",), _COUNTER
)
REGION_DEVICES = ExportedMetric(
    "periplus_region_devices", "Devices that the region offers, with those that cannot be used.", ("region",)
)
REGION_DEVICE_PROBLEMS = ExportedMetric(
    "periplus_region_device_problems", "Devices of the region that cannot be used.", ("region",)
)
REGION_SENT_BYTES = ExportedMetric(
    "periplus_region_sent_bytes_total",
    "Bytes that the gateway of one region sent to another since its agent's start, as the coordinator heard last.",
    _PAIR,
    _COUNTER,
)
LINK_RTT = ExportedMetric("periplus_link_rtt_seconds", "Round-trip time of the link when it was measured last.", _PAIR)
LINK_THROUGHPUT = ExportedMetric(
    "periplus_link_throughput_bytes_per_second", "Throughput of the link when it was measured last.", _PAIR
)
LINK_FAILED = ExportedMetric("periplus_link_failed", "Whether the last measurement of the link failed: 1 or 0.", _PAIR)
JOBS = ExportedMetric(
    "periplus_jobs", "Jobs by state. Those that have ended count until they are forgotten.", ("state",)
)
JOB_STATE = ExportedMetric(
    "periplus_job_state", "1 for the present state of a job that has not ended.", ("job_id", "state")
)
JOB_PENDING = ExportedMetric("periplus_job_pending_seconds", "Time since a pending job was submitted.", _JOB)
JOB_VERSION = ExportedMetric(
    "periplus_job_policy_version", "Newest policy version that the trainer has reported; it grows with each step.", _JOB
)
JOB_FORK = ExportedMetric("periplus_job_fork", "Fork of the job: it grows when a trainer starts again.", _JOB)
JOB_SILENCE = ExportedMetric("periplus_job_silence_seconds", "Time since the trainer's last record.", _JOB)
JOB_STEP = ExportedMetric("periplus_job_step_seconds", "Time of a step, mean of about the last 20.", _JOB)
JOB_TRAINING = ExportedMetric(
    "periplus_job_training_seconds", "Time of a step that the trainer computes, mean of about the last 20.", _JOB
)
JOB_WAITING = ExportedMetric(
    "periplus_job_waiting_seconds",
    "Time of a step that the trainer waits for samples, mean of about the last 20.",
    _JOB,
)
JOB_PUBLICATION = ExportedMetric(
    "periplus_job_publication_seconds",
    "Time from a version's snapshot until its gateway has it, mean of about the last 20.",
    _JOB,
)
JOB_PLANNED_STEP = ExportedMetric("periplus_job_planned_step_seconds", "Time of a step that the plan predicts.", _JOB)
JOB_REGION_GENERATION = ExportedMetric(
    "periplus_job_region_generation_seconds",
    "Time of a step in which a worker of the region had a request under way, mean of about the last 20.",
    _JOB_REGION,
)
JOB_REGION_WEIGHTS = ExportedMetric(
    "periplus_job_region_weights_seconds",
    "Longest time from the end of a training step until a worker of the region held its version, mean of about the "
    "last 20.",
    _JOB_REGION,
)
JOB_REGION_TOKENS = ExportedMetric(
    "periplus_job_region_tokens_per_second",
    "Completion tokens trained on a second that the region sampled, mean of about the last 20 steps.",
    _JOB_REGION,
)
JOB_SENT_BYTES = ExportedMetric(
    "periplus_job_sent_bytes_total",
    "Bytes that the job sent from one region to another, over all its forks.",
    ("job_id", *_PAIR),
    _COUNTER,
)
TASKS = ExportedMetric(
    "periplus_tasks",
    "Processes of jobs that have not ended, by their state; assigned before the first report.",
    ("region", "role", "state"),
)
PLANNING = ExportedMetric("periplus_planning", "Whether the planner works on a job: 1 or 0.")

# ---- an agent -------------------------------------------------------------------------------------------------------
AGENT_CONNECTED = ExportedMetric(
    "periplus_agent_session_connected", "Whether the agent's session with the coordinator is open: 1 or 0.", ("region",)
)
AGENT_EPOCH = ExportedMetric(
    "periplus_agent_session_epoch", "Number that the coordinator gave to the agent's newest session.", ("region",)
)
AGENT_SESSION_AGE = ExportedMetric(
    "periplus_agent_session_age_seconds", "Time since the agent's open session was opened.", ("region",)
)
AGENT_PROCESSES = ExportedMetric(
    "periplus_agent_processes",
    "Processes of the agent by role and state. One that has ended counts while its task is wanted.",
    ("region", "role", "state"),
)
AGENT_SENT_BYTES = ExportedMetric(
    "periplus_agent_sent_bytes_total",
    "Bytes that the gateway sent to another region since the agent's start, with gRPC's and HTTP/2's headers.",
    _PAIR,
    _COUNTER,
)
AGENT_SPOOL_BYTES = ExportedMetric("periplus_agent_spool_bytes", "Bytes of the frames in the job's spool.", _JOB_REGION)
AGENT_SPOOL_LIMIT = ExportedMetric(
    "periplus_agent_spool_limit_bytes", "Bytes that the job's spool may hold.", _JOB_REGION
)
AGENT_SPOOL_FRAMES = ExportedMetric(
    "periplus_agent_spool_frames", "Frames in the job's spool that the trainer's ledger has not committed.", _JOB_REGION
)
AGENT_SPOOL_BLOCKED = ExportedMetric(
    "periplus_agent_spool_blocked", "Whether a frame waits for room in the spool or on the disk: 1 or 0.", _JOB_REGION
)
AGENT_WEIGHTS_VERSION = ExportedMetric(
    "periplus_agent_weights_version", "Newest policy version that the gateway has in full.", _JOB_REGION
)
AGENT_DEVICES = ExportedMetric(
    "periplus_agent_devices", "Devices of the agent's machine, with those that cannot be used.", ("region",)
)
AGENT_DEVICE_PROBLEMS = ExportedMetric(
    "periplus_agent_device_problems", "Devices of the agent's machine that cannot be used.", ("region",)
)

_ALL = tuple(each for each in list(globals().values()) if isinstance(each, ExportedMetric))
_OF_AGENT = tuple(metric for metric in _ALL if metric.name.startswith("periplus_agent_"))

COORDINATOR_METRICS = tuple(metric for metric in _ALL if metric not in _OF_AGENT)
"""What a coordinator exports: all of this module but those whose names say that they are an agent's."""

AGENT_METRICS = (BUILD_INFO, *_OF_AGENT)
"""What an agent exports."""

EXPORTED_METRICS = MappingProxyType({metric.name: metric for metric in _ALL})
"""The registry, by name."""
