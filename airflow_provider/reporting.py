"""What an ended training tells the rest of Airflow: asset events of the task's outlets, and OpenLineage.

Both hear of it after the outcome stands; trouble with either is a warning in the task log and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Asset, AssetAlias

from kueue_integration.jobs.status import newest_usable

from .lineage import outputs_url


class TrainingReporter:
    """Mixin of the operator. `report` notes the lineage for the methods that the openlineage provider calls later."""

    log: Any
    inlets: Any
    outlets: Any
    _reported: Mapping[str, Any] | None = None

    def report(self, context: Any, lineage: Mapping[str, Any] | None, succeeded: bool) -> None:
        """Tell what became of the job, in `execute_complete`."""
        if lineage is None:
            return
        self._reported = lineage
        if succeeded:
            add_to_events(context, self.outlets, model_extra(lineage), outputs_url(lineage))
        try:
            from . import openlineage

            sent = openlineage.send_attempts(context["ti"], lineage)
        except ImportError:
            return  # not installed
        except Exception as error:  # the transport, or a provider that has changed
            self.log.warning("OpenLineage: the attempts were not sent (%s: %s)", type(error).__name__, error)
        else:
            if sent:
                self.log.info("OpenLineage: %d events of %d attempts sent", sent, len(lineage["attempts"]))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Called by the openlineage provider. It has imported what is imported here."""
        return self._openlineage(self.outlets)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """As on success, but the outlets were not made."""
        return self._openlineage(())

    def _openlineage(self, made: Iterable[Any]) -> Any:
        from airflow.providers.openlineage.extractors import OperatorLineage

        from . import openlineage

        if self._reported is None:
            return OperatorLineage()
        url = outputs_url(self._reported)
        stored = openlineage.asset_datasets([Asset(url)] if url else ())
        return OperatorLineage(
            inputs=openlineage.asset_datasets(self.inlets),
            outputs=[*openlineage.checkpoint_datasets(self._reported), *stored, *openlineage.asset_datasets(made)],
            run_facets={"singularity_training": openlineage.training_facet(self._reported)},
        )


def model_extra(lineage: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` of the event of an asset that a training has made: which job, how it went, its last checkpoint."""
    attempts = lineage.get("attempts") or ()
    return {
        "job": {name: lineage.get(name) for name in ("namespace", "name", "uid")},
        "step": lineage.get("step"),
        "loss": (lineage.get("progress") or {}).get("loss"),
        "world_size": lineage.get("world_size"),
        "attempts": len(attempts) + lineage.get("attempts_omitted", 0),
        "preemptions": lineage.get("preemptions"),
        "steps_lost": lineage.get("steps_lost"),
        "seconds_lost": lineage.get("seconds_lost"),
        "goodput": lineage.get("goodput"),
        "cost": lineage.get("cost"),
        "cost_per_step": lineage.get("cost_per_step"),
        "flavors": list(dict.fromkeys(record["flavor"] for record in attempts)),
        "checkpoint": newest_usable(lineage.get("checkpoints") or ()),
        "outputs": lineage.get("outputs"),
    }


def add_to_events(context: Any, outlets: Iterable[Any], extra: Mapping[str, Any], outputs: str | None = None) -> None:
    """Put `extra` under the key `training` into the event of every asset among `outlets`.

    An alias among them gets the asset whose URI is that of the `outputs`, with the same extra.
    Whatever else the Dag's author puts there stays.
    """
    events = context.get("outlet_events")
    if events is None:
        return
    for outlet in outlets or ():
        if isinstance(outlet, Asset):
            events[outlet].extra["training"] = dict(extra)
        elif isinstance(outlet, AssetAlias) and outputs is not None:
            events[outlet].add(Asset(outputs), extra={"training": dict(extra)})
