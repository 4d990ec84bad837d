"""What an answer says of its evidence: what could not be done as asked. In English and Chinese."""

from collections.abc import Mapping

from program.common.text import is_chinese
from signatures.schemas import CATEGORIES_CHINESE, SEVERITIES_CHINESE

_TEXTS: Mapping[str, tuple[str, str]] = {
    "general plan": (
        "no usable plan came ({error}): the general plan stands in, and a region that only the question names "
        "is not looked at for itself",
        "没有得到可用的计划，改用通用计划，只在问题中提到的区域不单独查看",
    ),
    "step failed": ("{step} failed: {error}", "模型没有给出可用的回答（{step}）"),
    "no box": ("region {region!r}: no box is known, so no tool measures it", "区域“{region}”位置未知，没有工具测量它"),
    "other region": (
        "the model spoke of {region!r}, which is no region of the question",
        "模型提到了“{region}”，它不是问题中的区域",
    ),
    "no tool": ("no tool is ready for this image", "没有工具可用于这张图像"),
    "unknown tool": ("{error}", "没有名为“{tool}”的工具，未使用"),
    "needs reference": (
        "tool {tool!r}: needs a reference image and none is given; left out",
        "工具“{tool}”需要参考图像，而这里没有，未使用",
    ),
    "not ready": (
        "tool {tool!r}: not ready for this image; {best} measures {distortion} instead",
        "工具“{tool}”不能用于这张图像，改用 {best} 测量",
    ),
    "other tool": (
        "tool {tool!r}: failed on this image; {best} measures instead",
        "工具“{tool}”在这张图像上失败，改用 {best} 测量",
    ),
    "whole measured": ("the whole image is measured with {tools} instead", "改用 {tools} 测量整幅图像"),
    "lost tool": (
        "tool {tool!r} was asked for and gave no score ({error})",
        "指定的工具“{tool}”没有给出分数",
    ),
    "same pixels": ("image and reference are the same, pixel for pixel", "图像与参考图像的每个像素都相同"),
    "undistorted": (
        "Nothing is distorted: every pixel is the reference's",
        "没有任何失真：每个像素都与参考图像相同",
    ),
    "no evidence": (
        "No distortion analysis or tool score was available; the answer rests on the image alone",
        "没有失真分析，也没有工具分数，回答只依据图像本身",
    ),
    "replanned": (
        "Nothing new could be gathered, so this gap remains: {gap}",
        "没有得到新的证据，证据仍不充分",
    ),
    "read as text": (
        "The model's answer, read as text, names level {level} of 5",
        "模型的回答按文字理解，为 5 级中的第 {level} 级",
    ),
    "tools alone": (
        "The model gave no level probabilities; the tools' scores stand alone",
        "模型没有给出等级概率，只有工具的分数",
    ),
    "uncovered whole": ("Distortion analysis does not cover {regions}", "没有对整幅图像的失真分析"),
    "uncovered": (
        "Distortion analysis does not cover all query_scope objects: missing {regions}",
        "失真分析没有涉及：{regions}",
    ),
    "uncertain": ("Uncertain analysis of {distortions} in {regions}: {explanation}", "分析不确定：{explanation}"),
    "unscored whole": ("No tool scores available", "没有工具分数"),
    "unscored region": ("Missing tool scores for {regions} region", "区域“{regions}”没有工具分数"),
    "unscored": ("Missing tool scores for {distortions} in {regions}", "“{regions}”的 {distortions} 没有工具分数"),
    "failed tool": (
        "Tool {tool} failed for {distortions} in {regions}; {alternative} is ready",
        "工具“{tool}”失败，可改用 {alternative}",
    ),
    "contradiction": (
        "Contradictory evidence: {severity} {distortions} in {regions} but a tool score of {score:.2f}",
        "证据矛盾：发现{severity}{distortions}，而工具的分数是 {score:.2f}",
    ),
    "contradiction region": (
        "Contradictory evidence: no distortion found in {regions} but a tool score of {score:.2f}",
        "证据矛盾：没有发现失真，而工具的分数是 {score:.2f}",
    ),
    "disagreement": (
        "The tools say {score:.1f} of 5 and the model {expected:.1f}, {size:.1f} standard deviations apart",
        "工具评分为 {score:.1f}，模型判断为 {expected:.1f}，相差 {size:.1f} 个标准差",
    ),
    "reduced": ("It was judged at 1/{size:.1f} of its size", "图像按 1/{size:.1f} 的尺寸判断"),
    "wide": ("The score may lie anywhere within {size:.1f} levels", "分数的区间宽达 {size:.1f} 级"),
}

_CHINESE: dict[str, str] = {}
for _words in (CATEGORIES_CHINESE, SEVERITIES_CHINESE):
    _CHINESE |= {str(name): chinese for name, chinese in _words.items()}


def note(name: str, query: str, **values: object) -> str:
    """Return a note in the language of a question, without its full stop.

    >>> note("no tool", "Is it sharp?"), note("no box", "狗清晰吗？", region="dog")
    ('no tool is ready for this image', '区域“dog”位置未知，没有工具测量它')
    """
    chinese = is_chinese(query)
    if chinese:
        values = {key: _CHINESE.get(str(value), value) for key, value in values.items()}
    return _TEXTS[name][chinese].format(**values)


def ended(text: str, query: str) -> str:
    """Return a text with the full stop of a question's language."""
    return text + ("。" if is_chinese(query) else ".")
