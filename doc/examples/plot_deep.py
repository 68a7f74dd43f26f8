"""
Letters of an alphabet never seen
=================================

A reader who knows the Latin and the Cyrillic alphabet can tell which Greek letters are the same in
two typefaces without knowing a single one of them. Can a network? It is trained by
:class:`~skdml.deep.DeepMetricEmbedder` on letters of two alphabets and has to find letters of a
third one, across typefaces. More in the :ref:`user guide <deep>`.
"""

# %%
# The data
# --------
# Each character is drawn in the sixteen typefaces that come with matplotlib: sixteen images of each
# class.

from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
styles = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
files = [folder / f"{family}{style}.ttf" for family, names in styles.items() for style in names]
fonts = [ImageFont.truetype(str(file), 22) for file in files]


def draw(characters):
    """Return images of 28 x 28 and their classes."""
    images = []
    for character in characters:
        for font in fonts:
            image = Image.new("L", (28, 28))
            ImageDraw.Draw(image).text((14, 14), character, 255, font, anchor="mm")
            images.append(np.asarray(image, dtype=np.float32) / 255)
    return np.stack(images)[:, None], np.repeat(list(characters), len(fonts))


latin = [chr(code) for first in "Aa" for code in range(ord(first), ord(first) + 26)]
cyrillic = [chr(code) for code in range(ord("А"), ord("я") + 1)]
greek = [chr(code) for code in range(ord("α"), ord("ω") + 1)]
X_train, y_train = draw(latin + cyrillic)
X_test, y_test = draw(greek)

# %%
# Search by pixels and by the learned metric
# ------------------------------------------
# recall@1 is the share of letters whose nearest image is the same letter in another typeface.

from skdml import DeepMetricEmbedder
from skdml.metrics import recall_at_k

model = DeepMetricEmbedder("convnet", augment="affine", max_epochs=6, random_state=0)
model.fit(X_train, y_train)
pixels = X_test.reshape(len(X_test), -1)
embedding = model.transform(X_test)
print(f"recall@1 of pixels:             {recall_at_k(pixels, y_test, k=1):.2f}")
print(f"recall@1 of the learned metric: {recall_at_k(embedding, y_test, k=1):.2f}")

# %%
# Some queries and what is nearest to them
# ----------------------------------------
# The bold slanted images of some letters are looked up among the others, by pixels and by the
# network. An orange frame with a cross marks a wrong letter. Pixels find what is as bold and
# slanted; the network has learned that this does not matter.

from matplotlib import pyplot as plt

from skdml.plot import RetrievalDisplay

queries = [16 * letter + 15 for letter in (0, 5, 7, 13, 18, 22)]
figure, panels = plt.subplots(1, 2, figsize=(7.4, 4), layout="constrained")
figure.get_layout_engine().set(wspace=0.08)
RetrievalDisplay.from_predictions(pixels, y_test, X_test, queries=queries, ax=panels[0])
RetrievalDisplay.from_estimator(model, X_test, y_test, queries=queries, ax=panels[1])
for axes, title in zip(panels, ("by pixels", "by the learned metric"), strict=True):
    axes.set_title(title, fontsize=10)
plt.show()
