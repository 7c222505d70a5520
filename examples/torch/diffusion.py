"""Stable Diffusion's UNet (860 million parameters, diffusers), trained on latents of several aspect ratios; pictures sampled between."""
import random

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDIMScheduler, DDPMScheduler, UNet2DConditionModel

import figures

BATCH = 8
SHAPES = ((64, 64), (56, 72), (72, 56), (48, 80), (80, 48))  # sides of the latents: an eighth of the picture's
SAMPLE_EVERY, SAMPLE_STEPS = 10, 10

random.seed(0)
with torch.device("cuda"):
    unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
    decoder = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), latent_channels=4, norm_num_groups=32,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2,
    ).to(torch.float16).requires_grad_(False)
noise_schedule = DDPMScheduler()
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5, fused=True)


def train(height: int, width: int) -> torch.Tensor:
    latents = torch.randn(BATCH, 4, height, width, device="cuda")
    text = torch.randn(BATCH, 77, 768, device="cuda")
    noise = torch.randn_like(latents)
    times = torch.randint(1000, (BATCH,), device="cuda")
    noisy = noise_schedule.add_noise(latents, noise, times)
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.mse_loss(unet(noisy, times, text).sample.float(), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@torch.inference_mode()
def sample(pictures: int) -> torch.Tensor:
    """DDIM with classifier-free guidance, then the decoder, one picture at a time."""
    schedule = DDIMScheduler()
    schedule.set_timesteps(SAMPLE_STEPS)
    latents = torch.randn(pictures, 4, 64, 64, device="cuda")
    text = torch.randn(2 * pictures, 77, 768, device="cuda")
    for time in schedule.timesteps:
        with torch.autocast("cuda", torch.bfloat16):
            without, guided = unet(torch.cat([latents, latents]), time, text).sample.float().chunk(2)
        latents = schedule.step(without + 7.5 * (guided - without), time, latents).prev_sample
    return torch.cat([decoder.decode(one.half()[None]).sample for one in latents])


for step in figures.steps(30):
    loss = train(*random.choice(SHAPES))
    if step % SAMPLE_EVERY == SAMPLE_EVERY - 1:
        sample(pictures=4)

figures.report(loss)
