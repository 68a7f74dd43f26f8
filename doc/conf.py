"""Configuration of the documentation. It builds without a network."""

import re
import sys
from pathlib import Path

import matplotlib

import skdml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
matplotlib.use("Agg")

project = "skdml"
author = "The skdml developers"
copyright = "The skdml developers"
version = release = skdml.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    # In doc/_ext.
    "mathml",
    "benchmark_results",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "examples", "api/generated/backreferences"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
default_role = "literal"
myst_enable_extensions = ["attrs_block", "attrs_inline", "deflist", "dollarmath"]
myst_heading_anchors = 3

html_theme = "pydata_sphinx_theme"
html_title = f"skdml {release}"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
# Light or dark, as the reader's system has it; without this the theme complains in the console.
html_context = {"default_mode": "auto"}
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_math_renderer = "mathml"
without_sidebar = ["index", "getting_started", "benchmarks", "contributing", "changelog"]
# Code side by side needs the width.
side_by_side = [f"coming_from/{page.stem}" for page in (HERE / "coming_from").glob("*.md")]
html_sidebars = {page: [] for page in [*without_sidebar, *side_by_side]}
toc_object_entries_show_parents = "hide"
html_theme_options = {
    "logo": {"text": "skdml"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        **{page: [] for page in ["index", *side_by_side]},
    },
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": False,
}

autosummary_generate = True
# Docstrings have the types, in words.
autodoc_typehints = "none"
# A class page has its own list of methods (see _templates/autosummary/class.rst).
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "auto_examples",
    "backreferences_dir": "api/generated/backreferences",
    "doc_module": ("skdml",),
    "within_subsection_order": "gallery_order.place",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_signature": False,
    "write_computation_times": False,
}


def skip_what_others_document(app, what, name, obj, skip, options):
    """Leave members that scikit-learn and torch define to their own documentation."""
    if isinstance(obj, property):
        obj = obj.fget
    module = getattr(obj, "__module__", None) or ""
    is_of_torch = name in ("T_destination", "call_super_init", "dump_patches", "training")
    return True if is_of_torch or module.startswith(("sklearn.", "torch.")) else None


def drop_line_for_doctest(app, docname, source):
    """Remove the empty line before a closing fence, which only doctest needs."""
    source[0] = re.sub(r"\n\n(?= *```\n)", "\n", source[0])


def setup(app):
    app.connect("source-read", drop_line_for_doctest)
    app.connect("autodoc-skip-member", skip_what_others_document)
