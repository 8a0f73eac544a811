"""Render the servers' log settings: the files that they have anyway, with fewer lines.

By default both log every request twice and every worker's metrics line; at 10 000 requests a second that costs a third
of the rate. What a model's worker prints is always kept: that is where a failure's trace is.
"""

from __future__ import annotations

from slotwise.profiles.profile import Profile

OWN = {"torchserve": ("ts", "org.pytorch.serve", "TS_METRICS"), "mms": ("mms", "com.amazonaws.ml.mms", "MMS_METRICS")}

FILE = """\
    <RollingFile name="{name}" fileName="logs/{name}.log" filePattern="logs/{name}.%i.log.gz">
      <PatternLayout pattern="{pattern}"/>
      <Policies><SizeBasedTriggeringPolicy size="100 MB"/></Policies>
      <DefaultRolloverStrategy max="5"/>
    </RollingFile>
"""

CONFIG = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration>
  <Appenders>
    <Console name="STDOUT" target="SYSTEM_OUT"><PatternLayout pattern="{line}"/></Console>
{files}  </Appenders>
  <Loggers>
    <Logger name="ACCESS_LOG" level="{requests}" additivity="false"><AppenderRef ref="access_log"/></Logger>
    <Logger name="MODEL_LOG" level="info" additivity="false"><AppenderRef ref="model_log"/></Logger>
    <Logger name="com.amazonaws.ml.mms.wlm.WorkerLifeCycle" level="info" additivity="false">
      <AppenderRef ref="model_log"/>
    </Logger>
    <Logger name="MODEL_METRICS" level="{metrics}" additivity="false"><AppenderRef ref="model_metrics"/></Logger>
    <Logger name="{server_metrics}" level="{metrics}" additivity="false"><AppenderRef ref="{own}_metrics"/></Logger>
    <Logger name="{package}" level="{level}" additivity="false">
      <AppenderRef ref="STDOUT"/>
      <AppenderRef ref="{own}_log"/>
    </Logger>
    <Logger name="io.netty" level="error"/>
    <Logger name="org.apache" level="off"/>
    <Root level="{level}"><AppenderRef ref="STDOUT"/><AppenderRef ref="{own}_log"/></Root>
  </Loggers>
</Configuration>
"""


def log4j2(kind: str, profile: Profile) -> str:
    """The log4j2.xml of one server, with the profile's log_level, request_log and metrics_mode."""
    own, package, server_metrics = OWN[kind]
    line = "%d{ISO8601} [%-5p] %t %c - %m%n"
    names = {"access_log": "%d{ISO8601} - %m%n", "model_log": line, f"{own}_log": line}
    names |= {"model_metrics": "%d{ISO8601} - %m%n", f"{own}_metrics": "%d{ISO8601} - %m%n"}
    return CONFIG.format(
        line=line,
        files="".join(FILE.format(name=name, pattern=pattern) for name, pattern in names.items()),
        requests="info" if profile.request_log else "off",
        metrics="info" if profile.metrics_mode == "log" else "off",
        level=profile.log_level.lower(),
        own=own,
        package=package,
        server_metrics=server_metrics,
    )
