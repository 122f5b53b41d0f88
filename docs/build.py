"""Builds the site: README, the pages of this folder, and the API from the docstrings. A warning is an error.

    python docs/build.py FOLDER

pdoc makes the API's pages and brings the translator of markdown and the style for the others.
"""

from __future__ import annotations

import re
import shutil
import sys
import warnings
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SOURCE = "https://github.com/cuda-magic/cuda-magic/blob/main"
EXTRAS = ["tables", "fenced-code-blocks", "header-ids", "cuddled-lists"]
PAGE = """{% extends "frame.html.jinja2" %}
{% block title %}{{ title }}{% endblock %}
{% block nav %}<h2>cuda_magic</h2><ul>{% for name, text in pages %}<li><a href="{{ name }}">{{ text }}</a></li>
{% endfor %}<li><a href="cuda_magic.html">API</a></li></ul>{% endblock %}
{% block content %}<style>.docstring img { max-width: 100%; } .docstring table { font-size: 90%; }</style>
<main class="pdoc"><section class="module-info"><div class="docstring">{{ body | safe }}</div>
</section></main>{% endblock %}"""


def address(target: str, page: Path) -> str:
    """Where a link of `page` leads in the site: to another page, a picture, or the project's source."""
    if "://" in target or target.startswith("#"):
        return target
    path, _, part = target.partition("#")
    file = (page.parent / path).resolve()
    if not file.exists():
        raise FileNotFoundError(f"{page.name} links to {target}, which does not exist")
    name = file.relative_to(ROOT).as_posix()
    if name == "README.md":
        name = "index.html"
    elif file.parent == DOCS and file.suffix == ".md":
        name = f"{file.stem}.html"
    elif name.startswith("docs/images/"):
        name = name.removeprefix("docs/")
    else:
        name = f"{SOURCE}/{name}"
    return f"{name}#{part}" if part else name


def specifications() -> list[str]:
    """What pdoc is to document: all modules. By itself it leaves those out that no `__all__` of a package names."""
    from pdoc.extract import walk_specs

    names: list[str] = []
    walked: set[str] = set()
    for path in sorted((ROOT / "cuda_magic").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in walked and not any(part.startswith("_") for part in name.split(".")[1:]):
            names.append(name)
            walked.update(walk_specs([name]))
    return names


def main(folder: Path) -> None:
    """Write the site to `folder`.

    Raises
    ------
    Warning
        Where pdoc warns: a name that cannot be resolved, a module that cannot be imported.
    FileNotFoundError
        Where a page links to a file that does not exist.
    """
    import markdown2
    import pdoc

    warnings.simplefilter("error")
    # the constructor that NamedTuple makes has a namespace of its own, in which the module's names are not
    warnings.filterwarnings("ignore", r"Error parsing type annotation ForwardRef\(.*\) for .*\.__init__\.")
    names = specifications()
    for module in map(import_module, names):  # names that __getattr__ brings: pdoc does not ask it
        for name in getattr(module, "__all__", ()):
            if name not in vars(module):
                setattr(module, name, getattr(module, name))
    pdoc.render.configure(
        docformat="numpy", search=False, show_source=False, edit_url_map={"cuda_magic": f"{SOURCE}/cuda_magic/"}
    )
    pdoc.pdoc(*names, output_directory=folder)
    files = {"index.html": ROOT / "README.md", **{f"{p.stem}.html": p for p in sorted(DOCS.glob("*.md"))}}
    titles = {name: path.read_text().split("\n", 1)[0].lstrip("# ") for name, path in files.items()}
    page = pdoc.render.env.from_string(PAGE)
    for name, path in files.items():
        text = re.sub(r"(?<=\]\()([^)\s]+)", lambda link, path=path: address(link[1], path), path.read_text())
        body = markdown2.markdown(text, extras=EXTRAS)
        (folder / name).write_text(page.render(title=titles[name], pages=titles.items(), body=body))
    shutil.copytree(DOCS / "images", folder / "images", dirs_exist_ok=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.path.insert(0, str(ROOT))
    main(Path(sys.argv[1]))
