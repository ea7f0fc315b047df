"""Metrics for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
REQUESTS = Counter("equipoise_requests", "Requests by route and status", ["route", "status"], registry=REGISTRY)
SECONDS = Histogram(
    "equipoise_request_seconds",
    "Time to the end of an answer, without streams",
    ["route"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    registry=REGISTRY,
)
PREDICTIONS = Counter("equipoise_predictions", "Predicted pictures", ["unknown"], registry=REGISTRY)
JOBS = Counter("equipoise_jobs", "Finished jobs", ["kind", "state"], registry=REGISTRY)
CLASSES = Gauge("equipoise_classes", "Classes of the current version", registry=REGISTRY)
STEPS = Gauge("equipoise_steps", "Steps of the current version", registry=REGISTRY)
PICTURES = Gauge("equipoise_pictures_waiting", "Uploaded pictures that wait to be learned", registry=REGISTRY)
