"""The settings of one coordinator process: checked once in the command, logged at start, taken apart in `app.py`."""

import re
from pathlib import Path

from pydantic import Field

from periplus.config.loading import Config
from periplus.errors import ConfigError
from periplus.net.rpc import MAX_PROBE_BYTES
from periplus.net.tokens import check_identified


class CoordinatorConfig(Config):
    """The settings of one coordinator process."""

    listen: str = Field(default="127.0.0.1:7070", min_length=1)
    """host:port on which the coordinator listens for agents and operators; with port 0 the system chooses a port."""

    metrics_listen: str = ""
    """host:port of the HTTP endpoint for Prometheus; empty for none, and with port 0 the system chooses a port."""

    health_listen: str = ""
    """host:port of the health service of gRPC, in plain text; empty for none, and with port 0 the system chooses a
    port."""

    mqtt: str = ""
    """host:port of the MQTT broker that is told the state of the fleet (docs/mqtt.md); empty for none."""

    mqtt_user: str = ""
    """Name by which the broker knows the coordinator; empty for none."""

    mqtt_password_file: Path | None = None
    """File of the password for the broker; None for none."""

    mqtt_tls: bool = False
    """Whether the connection to the broker uses TLS, with the certificate authorities of the system."""

    mqtt_topic: str = "periplus"
    """Beginning of all topics, such as `site/periplus`."""

    wan: str = ""
    """Control address of the WAN emulator; empty when the coordinator uses the real network."""

    region: str = ""
    """Region in which the WAN emulator places the coordinator; empty without an emulator."""

    state_dir: Path | None = None
    """Directory of the coordinator's database, made if it does not exist; None keeps the state in memory."""

    plaintext: bool = False
    """Whether connections are plain TCP without identities, which only a loopback address allows."""

    token_file: Path | None = None
    """File of the token that every call of a coordinator without identities must carry, agents' sessions too; None
    answers everybody on this machine."""

    heartbeat_s: float = Field(default=1.0, gt=0, le=60)
    """Seconds between an agent's heartbeats; the coordinator sends this value in its welcome."""

    silent_after_s: float = Field(default=10.0, gt=0, le=3600)
    """Seconds without a message after which a region counts as disconnected, even if its session is still open."""

    probe_payload_bytes: int = Field(default=1 << 20, ge=1 << 10, le=MAX_PROBE_BYTES)
    """Bytes that a probe sends to measure one link in one direction."""

    probe_timeout_s: float = Field(default=20.0, gt=0, le=600)
    """Seconds after which a probe of which nothing was heard is given up; an agent gives its own up after 15 s."""

    probe_retry_s: float = Field(default=60.0, gt=0, le=86_400)
    """Seconds after which a pair of regions whose probe has failed is probed again."""

    probe_again_s: float = Field(default=600.0, gt=0, le=86_400)
    """Seconds after which a measured link is measured again. Links change within hours, and ten minutes make the probes
    of a link 2 kB/s. Chosen by hand."""

    jobs_per_region: int = Field(default=1, ge=1, le=16)
    """Jobs that may share a group of cores. An accelerator is held by one job at a time."""


def resolve(config: CoordinatorConfig) -> CoordinatorConfig:
    """Return the configuration unchanged if its settings agree. Raises: ConfigError if they contradict each other."""
    addresses = (
        ("--listen", config.listen),
        ("--metrics", config.metrics_listen),
        ("--health", config.health_listen),
        ("--mqtt", config.mqtt),
    )
    for option, address in addresses:
        host, _, port = address.rpartition(":")
        is_off = option != "--listen" and not address
        if not is_off and (not host or not port.isdigit() or int(port) > 65535):
            raise ConfigError(f"{option} {address!r} is not HOST:PORT, such as 127.0.0.1:7070 or [::]:7070")
    if not re.fullmatch(r"(?!\$)[^/+#\s][^+#\s]*(?<!/)", config.mqtt_topic):
        raise ConfigError(f"--mqtt-topic {config.mqtt_topic!r} cannot begin a topic; take one such as site/periplus")
    if not config.mqtt and (config.mqtt_user or config.mqtt_tls):
        raise ConfigError("--mqtt-user and --mqtt-tls are for the broker of --mqtt HOST:PORT")
    if config.mqtt_password_file and not config.mqtt_user:
        raise ConfigError("--mqtt-password-file is given without --mqtt-user NAME")
    emulates = bool(config.wan)  # the emulator is asked with the token
    check_identified(
        "a coordinator", config.listen, plaintext=config.plaintext, token_file=None if emulates else config.token_file
    )
    if not config.plaintext and config.state_dir is None:
        raise ConfigError(
            "a coordinator certifies the members of its fleet, and keeps the key for that in --state-dir DIR; without "
            "identities, on a loopback address, give --plaintext"
        )
    if bool(config.wan) != bool(config.region):
        given, missing = ("--wan", "--region") if config.wan else ("--region", "--wan")
        raise ConfigError(f"{given} is given without {missing}: both place the coordinator in the WAN emulator")
    # A region is heard at least once per heartbeat.
    if config.silent_after_s <= config.heartbeat_s:
        raise ConfigError(
            f"silent_after_s is {config.silent_after_s}, not above heartbeat_s {config.heartbeat_s}: every region "
            "would count as disconnected; use at least three heartbeats"
        )
    return config
