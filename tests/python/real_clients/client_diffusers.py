"""A small latent diffusion model of diffusers: trains its UNet, then samples and decodes images."""

import tempfile
from pathlib import Path

import diffusers
import torch

from tests.python.client_program import measure

STEPS, CHANNELS, TEXT, WIDTH = 10, 4, 77, 64
# Batch, and side of the latent image.
SIZES = ((4, 32), (2, 48), (6, 24), (1, 64))


def load():
    unet = diffusers.UNet2DConditionModel(
        sample_size=32,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        block_out_channels=(64, 128, 128),
        layers_per_block=1,
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    )
    vae = diffusers.AutoencoderKL(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=CHANNELS,
    )
    return unet.cuda(), vae.cuda().requires_grad_(False)


def train(unet, vae):
    unet.enable_gradient_checkpointing()
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    ema = diffusers.training_utils.EMAModel(unet.parameters())
    shapes = []
    for step in range(STEPS):
        batch, side = SIZES[step % len(SIZES)]
        images = torch.zeros(batch, 3, 2 * side, 2 * side, device="cuda")
        latents = vae.encode(images).latent_dist.sample()
        noise, times = torch.randn_like(latents), torch.full((batch,), 10 * step, device="cuda")
        noisy = scheduler.add_noise(latents, noise, times)
        text = torch.zeros(batch, TEXT, WIDTH, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            predicted = unet(noisy, times, text).sample
            loss = torch.nn.functional.mse_loss(predicted.float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.step(unet.parameters())
        shapes.append([list(predicted.shape), str(predicted.dtype)])
    return shapes, ema.optimization_step


@torch.no_grad()
def sample(unet, vae):
    unet.eval()
    shapes = []
    for batch, side in SIZES:
        scheduler = diffusers.DDIMScheduler(num_train_timesteps=1000)
        scheduler.set_timesteps(5, device="cuda")
        latents = torch.randn(batch, CHANNELS, side, side, device="cuda")
        text = torch.zeros(2 * batch, TEXT, WIDTH, device="cuda")
        for time in scheduler.timesteps:
            without, within = unet(latents.repeat(2, 1, 1, 1), time, text).sample.chunk(2)
            latents = scheduler.step(without + 7 * (within - without), time, latents).prev_sample
        images = vae.decode(latents).sample
        shapes.append([list(images.shape), [int(time) for time in scheduler.timesteps]])
    return shapes


def program():
    torch.manual_seed(0)
    unet, vae = load()
    trained, averaged = train(unet, vae)
    with tempfile.TemporaryDirectory() as folder:
        unet.save_pretrained(folder)
        saved = sorted(path.name for path in Path(folder).iterdir())
        unet = diffusers.UNet2DConditionModel.from_pretrained(
            folder, low_cpu_mem_usage=False
        ).cuda()
    return {"trained": trained, "averaged": averaged, "saved": saved, "sampled": sample(unet, vae)}


measure(program)
