"""LargeGT as a plain nn.Module in your own loop, on the demo graph: python examples/own_loop.py"""

import torch
from torch.nn import functional as F

import largegt as lg
from largegt.datasets.demo import demo_source

store = lg.ingest(demo_source(), out="data/own-loop", config=lg.IngestConfig(undirected=True), overwrite=True)
prepared = lg.prepare(store, lg.Config.from_recipe("demo").prepare)
model = lg.LargeGT.for_prepared(prepared, lg.ModelConfig(hidden=64))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

batches = lg.token_batches(prepared, split="train", batch_size=512, seed=0, distinct=True)
for step, batch in enumerate(batches):
    output = model(batch)
    loss = F.cross_entropy(output.logits, batch.labels.long())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.update_codebook(output)
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
