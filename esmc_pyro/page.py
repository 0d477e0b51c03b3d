"""What the HTML pages share: templates with all text escaped, and figures for light and dark readers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from esmc_pyro import figures


@dataclass(frozen=True)
class Metric:
    """A figure of merit: its name in ``metrics.evaluate``, its title, what it says, how it is written."""

    key: str
    title: str
    meaning: str
    digits: int = 3
    smaller_is_better: bool = False

    def write(self, value: float) -> str:
        return f"{value:.{self.digits}f}"


def render_page(template: str, **content: Any) -> str:
    """``templates/<template>`` with everything from outside escaped; a name that the content lacks is an error."""
    environment = Environment(loader=PackageLoader("esmc_pyro"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template(template).render(**content)


def both_themes(figure: Callable[..., Figure], *args: Any, reader_fonts: bool = False) -> dict[str, str]:
    """The figure drawn for light and for dark, each as a ``data:`` URI.

    ``reader_fonts`` leaves text to the reader's fonts instead of drawing its outlines: for names in any script.
    """
    themes = {"light": figures.LIGHT, "dark": figures.DARK}
    with mpl.rc_context({"svg.fonttype": "none" if reader_fonts else "path"}), warnings.catch_warnings():
        if reader_fonts:
            # only the room that a letter takes is guessed by Matplotlib's own font
            warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        return {name: figures.embed(figure(*args, theme=theme)) for name, theme in themes.items()}
