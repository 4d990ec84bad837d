"""An assessment as a notebook shows it: the picture, where quality is lost, the answer with its bar, and findings."""

from typing import TYPE_CHECKING

import jinja2

from program.agent.evidence import looked_at
from program.common.errors import ImageError
from program.images.thumbnails import data_url, thumbnail
from signatures.schemas import CATEGORY_WORDS

if TYPE_CHECKING:
    from program.agent.assessment import Assessment

__all__ = ("card",)

_SIDE_PX = 320
_CARD = """
<div style="display: flex; flex-wrap: wrap; gap: 16px; font: 14px/1.5 system-ui, sans-serif">
{% for name, url in pictures.items() %}<img alt="{{ name }}" title="{{ name }}" src="{{ url }}">{% endfor %}
<div style="max-width: 340px"><div style="font-size: 18px; font-weight: 600">{{ result.headline }}</div>
{% if result.rating is not none %}
<div title="1 to 5" style="position: relative; height: 8px; margin: 8px 0; border-radius: 4px; background: #8884">
<div style="position: absolute; inset: 0 {{ 125 - 25 * high }}% 0 {{ 25 * low - 25 }}%; background: #3b6fd466"></div>
<div style="position: absolute; inset: 0 auto 0 {{ 25 * result.rating - 26 }}%; width: 8px; background: #3b6fd4"></div>
</div>
{% endif %}
{% for line in lines if line %}<div>{{ line }}</div>{% endfor %}
<ul style="margin: 6px 0">{% for finding in findings %}<li>{{ finding }}</li>{% endfor %}</ul>
</div></div>
"""


def card(result: "Assessment") -> str:
    """Return the HTML, which fetches nothing; what comes from data or a model is escaped."""
    evidence = result.state.evidence
    findings = [
        f"{f.fault or CATEGORY_WORDS.get(f.type, f.type)}: {f.severity}, {looked_at(evidence, region)}"
        for region, f in evidence.findings()
        if f.severity != "none"
    ]
    low, high = result.score_interval or (result.rating, result.rating)
    template = jinja2.Environment(autoescape=True).from_string(_CARD)
    lines = [result.summary, *result.notes, result.error]
    return template.render(
        result=result, pictures=_pictures(result), low=low, high=high, lines=lines, findings=findings
    )


def _pictures(result: "Assessment") -> dict[str, str]:
    """Return the image and its map; none where its bytes are not at hand any more."""
    try:
        return {
            "the image": thumbnail(result.images[0], _SIDE_PX),
            "where quality is lost": data_url(result.heatmap(), _SIDE_PX),
        }
    except ImageError:
        return {}
