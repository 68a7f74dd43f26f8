"""Maths as MathML, written at build time: pages show it without a script and without a network.

The conversion is the one that comes with docutils. It knows the usual LaTeX commands; one that
it does not know is a warning at build time, never a broken page.
"""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

logger = logging.getLogger(__name__)


def convert(node, as_block):
    tex = node.astext()
    if as_block and r"\\" in tex and r"\begin" not in tex:
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"
    try:
        return tex2mathml(tex, as_block=as_block)
    except MathError as error:
        logger.warning("maths cannot be converted: %s", error, location=node)
        return f"<code>{nodes.unescape(tex)}</code>"


def visit_math(translator, node):
    translator.body.append(convert(node, as_block=False))
    raise nodes.SkipNode


def visit_math_block(translator, node):
    # Not the class "math": the theme clips it, for MathJax.
    translator.body.append(translator.starttag(node, "div", CLASS="formula"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(convert(node, as_block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
