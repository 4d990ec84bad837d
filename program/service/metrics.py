"""What Prometheus scrapes at /metrics. Labels come from closed sets only, so that no client can make new ones."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from program.agent.assessment import Assessment

__all__ = ("Metrics",)

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_STAGES = ("planner", "executor", "tools", "summarizer", "total")


class Metrics:
    """Counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="agenticiqa", registry=self.registry)
        seconds = partial(Histogram, namespace="agenticiqa", registry=self.registry, buckets=_SECONDS)
        self.requests = counter("requests_total", "Requests answered", ["route", "status"])
        self.seconds = seconds("request_seconds", "Seconds from request to answer", ["route"])
        self.refused = counter("refused_total", "Requests refused, by reason", ["reason"])
        self.admitted = Gauge(
            "admitted", "Requests being worked on or waiting", namespace="agenticiqa", registry=self.registry
        )
        self.assessments = counter("assessments_total", "Assessments, by status", ["status"])
        self.stage_seconds = seconds("stage_seconds", "Seconds of an assessment's stages", ["stage"])
        self.lm_calls = counter("lm_calls_total", "Questions put to a model", ["answered_by"])
        self.tokens = counter("tokens_total", "Tokens of model calls", ["direction"])
        self.cost = counter("cost_usd_total", "Cost of model calls where prices are known")
        self.readings = counter("tool_readings_total", "Tool readings", ["outcome"])
        self.replans = counter("replans_total", "Times a plan was made anew")

    def assessed(self, result: Assessment) -> None:
        """Count one assessment and what it cost."""
        usage = result.usage
        self.assessments.labels(result.status).inc()
        for stage in _STAGES:
            if stage in usage.seconds:
                self.stage_seconds.labels(stage).observe(usage.seconds[stage])
        self.lm_calls.labels("cache").inc(usage.lm_cache_hits)
        self.lm_calls.labels("model").inc(max(0, usage.lm_calls - usage.lm_cache_hits))
        self.tokens.labels("input").inc(usage.input_tokens)
        self.tokens.labels("output").inc(usage.output_tokens)
        self.cost.inc(usage.cost_usd or 0.0)
        self.replans.inc(usage.replans)
        evidence = result.state.executor_evidence
        for log in evidence.tool_logs if evidence else []:
            self.readings.labels("failed" if log.error else "cached" if log.cached else "measured").inc()

    def page(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self.registry)
