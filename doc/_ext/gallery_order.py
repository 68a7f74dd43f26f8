"""The order of the gallery: a first metric, tasks, many machines, and how it is done."""

from pathlib import Path

ORDER = (
    "plot_gmml.py",
    "plot_genes.py",
    "plot_verification.py",
    "plot_domain_search.py",
    "plot_sentences.py",
    "plot_handwriting.py",
    "plot_deep.py",
    "plot_search_results.py",
    "plot_asymmetric.py",
    "plot_ssdml.py",
    "plot_generator.py",
    "plot_grid_search_dask.py",
    "plot_ranks.py",
    "plot_ditml_convergence.py",
    "plot_ranking.py",
    "plot_transport.py",
)


def place(file):
    """Return the place of an example; those that are not listed come last, by name."""
    name = Path(file).name
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)
