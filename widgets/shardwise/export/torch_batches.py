"""The program's synthetic batch, for each kind of model."""

from __future__ import annotations

from shardwise.export.realized import Realized

_WORDS = """words, size = CONFIG.get_text_config().vocab_size, (MICRO_BATCH, SEQUENCE_LENGTH)
    tokens = torch.randint(words, size, device=device, generator=generator)"""

_TEXT = f'''
def batch(device, generator):
    """Random tokens that are their own labels."""
    {_WORDS}
    return {{"input_ids": tokens, "labels": tokens}}
'''
_IMAGE = '''
def batch(device, generator):
    """Random images of the size that the model reads, with random labels."""
    size = (MICRO_BATCH, CONFIG.num_channels, CONFIG.image_size, CONFIG.image_size)
    images = torch.randn(size, device=device, generator=generator)
    labels = torch.randint(CONFIG.num_labels, (MICRO_BATCH,), device=device, generator=generator)
    return {"pixel_values": images, "labels": labels}
'''
_SPEECH = f'''
def batch(device, generator):
    """Random spectrograms of 30 seconds, with random tokens to be predicted."""
    size = (MICRO_BATCH, CONFIG.num_mel_bins, 2 * CONFIG.max_source_positions)
    sound = torch.randn(size, device=device, generator=generator)
    {_WORDS}
    return {{"input_features": sound, "labels": tokens}}
'''
_IMAGE_TEXT = '''
def batch(device, generator):
    """Random images, then random tokens."""
    side, channels = CONFIG.vision_config.image_size, CONFIG.vision_config.num_channels
    size = (MICRO_BATCH * IMAGES, channels, side, side)
    images = torch.randn(size, device=device, generator=generator)
    size = (MICRO_BATCH, SEQUENCE_LENGTH)
    tokens = torch.randint(IMAGE_TOKENS, size, device=device, generator=generator)
    is_image = torch.zeros_like(tokens)
    is_image[:, : IMAGES * IMAGE_TOKENS] = 1
    tokens[:, : IMAGES * IMAGE_TOKENS] = CONFIG.image_token_id
    batch = {"input_ids": tokens, "pixel_values": images%s}
    return {**batch, "labels": tokens.masked_fill(is_image.bool(), -100)}
'''


def batch(plan: Realized) -> str:
    """`batch(device, generator)`: one micro-batch of one rank."""
    task = plan.config.task
    if task == "image-text" and plan.scenario.training.images_per_sample:
        gemma = plan.config.architecture.startswith("Gemma3")
        return _IMAGE_TEXT % (', "token_type_ids": is_image' if gemma else "")
    return {"image": _IMAGE, "speech": _SPEECH}.get(task, _TEXT)


def constants(plan: Realized) -> tuple[str, ...]:
    """Further constants that the batch needs."""
    count = plan.scenario.training.images_per_sample
    if plan.config.task != "image-text" or not count:
        return ()
    images = f"IMAGES = {count}  # a sample"
    if plan.config.architecture.startswith("Gemma3"):
        return (images, "IMAGE_TOKENS = CONFIG.mm_tokens_per_image")
    return (
        images,
        "VISION = CONFIG.vision_config",
        "PATCHES = (VISION.image_size // VISION.patch_size) ** 2",
        "IMAGE_TOKENS = round(PATCHES * VISION.pixel_shuffle_ratio**2)",
    )
