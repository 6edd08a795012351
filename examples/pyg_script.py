"""LargeGT in a plain PyTorch Geometric training loop, on a small graph made here: python examples/pyg_script.py"""

import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.transforms import RandomNodeSplit

import largegt as lg

torch.manual_seed(0)
y = torch.randint(3, (600,))
edge_index = torch.randint(600, (2, 6000))
edge_index = edge_index[:, (y[edge_index[0]] == y[edge_index[1]]) | (torch.rand(6000) < 0.2)]
data = Data(x=torch.randn(600, 8) + 0.5 * y[:, None], edge_index=edge_index, y=y)
data = RandomNodeSplit(num_val=0.2, num_test=0.2)(data)

train_loader = lg.pyg.loader(data, data.train_mask, k=16, batch_size=64, shuffle=True)
test_loader = lg.pyg.loader(data, data.test_mask, k=16, batch_size=512)
model = train_loader.model(lg.LargeGTConfig(hidden_dim=32))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(8):
    model.train()
    for batch in train_loader:
        out = model(batch)  # batch.tokens: [b, 3k, d], batch.nodes: rows of data
        loss = F.cross_entropy(out.logits, batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_codebook(out)
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    right = torch.cat([model(batch).logits.argmax(dim=1) == batch.labels for batch in test_loader])
print("test:", right.float().mean().item())
