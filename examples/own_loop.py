"""LargeGT as a plain nn.Module in your own loop, on a small graph made here: python examples/own_loop.py"""

import numpy as np
import torch
from torch.nn import functional as F

import largegt as lg

rng = np.random.default_rng(0)
labels = rng.integers(3, size=2000)
edge_index = rng.integers(2000, size=(2, 20_000))
edge_index = edge_index[:, (labels[edge_index[0]] == labels[edge_index[1]]) | (rng.random(20_000) < 0.2)]
features = (rng.normal(size=(2000, 8)) + 0.5 * labels[:, None]).astype(np.float32)

torch.manual_seed(0)
store = lg.ingest(lg.sources.arrays(edge_index, features, labels), out="data/own-loop", overwrite=True)
prepared = lg.prepare(store, lg.Config.from_recipe("demo").prepare)
model = lg.LargeGT.for_prepared(prepared, lg.LargeGTConfig(hidden_dim=64))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(5):
    for batch in lg.token_batches(prepared, split="train", batch_size=128, seed=epoch, distinct=True):
        output = model(batch)  # batch.tokens: [b, 3K, d]
        loss = F.cross_entropy(output.logits, batch.labels.long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.update_codebook(output)
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    batches = lg.token_batches(prepared, split="test", batch_size=512)
    right = torch.cat([model(batch).logits.argmax(dim=1) == batch.labels for batch in batches])
print("test:", right.float().mean().item())
