"""Rewards of images by two-tower models (CLIP, SigLIP), one a file.

``towers`` is such a model, ``load`` makes it of published files (``checkpoint``) or by the package open_clip; ``match``
is what the rewards by cosine share, ``head`` the file format of heads on image embeddings, and ``embeddings`` the image
features for rewards of sets.
"""
