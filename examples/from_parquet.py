"""From a dump of transfers to the accounts to look into, and why: python examples/from_parquet.py"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import largegt as lg

# A dump as a data team would hand it over, made here: 2,000 accounts, a tenth of them mules that pay each other.
rng = np.random.default_rng(0)
is_mule = rng.random(2000) < 0.1
payer, payee = rng.integers(2000, size=(2, 30_000))
between_mules = rng.choice(np.flatnonzero(is_mule), size=(2, 1500))
payer, payee = np.concatenate([[payer, payee], between_mules], axis=1)
account = np.array([f"AC{number:05d}" for number in range(2000)])
known = rng.random(2000) < 0.6  # somebody has looked into these
accounts = pa.table({
    "account": account,
    "age_days": (rng.gamma(2.0, 400.0, 2000) * np.where(is_mule, 0.6, 1.0)).astype(np.float32),
    "mean_amount": rng.lognormal(4.0, 1.0, 2000).astype(np.float32),
    "logins": rng.poisson(20, 2000).astype(np.float32),
    "verdict": pa.array(np.where(is_mule, "mule", "honest"), mask=~known),
})  # fmt: skip
pq.write_table(pa.table({"payer": account[payer], "payee": account[payee]}), "transfers.parquet")
pq.write_table(accounts, "accounts.parquet")

# What you write begins here. Who pays whom says more than a column does, so no feature needs to be made of it.
tables = lg.sources.files(
    "transfers.parquet", nodes="accounts.parquet",
    source_column="payer", target_column="payee", id_column="account", label_column="verdict",
)  # fmt: skip
store = lg.ingest(tables, out="data/transfers", overwrite=True)
settings = ["model.hidden_dim=32", "train.epochs=10", "train.batch_size=128", "train.learning_rate=5e-3"]
run = lg.train(store, lg.Config.from_recipe("default", settings), out="runs/transfers", overwrite=True)
print("test:", lg.evaluate(run, split="test"))

found = lg.predict(run, out="verdicts.parquet", overwrite=True)  # every account, also those nobody looked into
others = found.append_column("mule", pa.array(is_mule)).filter(pa.array(~known))
suspects = others.filter(pc.equal(others["label"], "mule")).sort_by([("probability", "descending")])
for row in suspects.slice(0, 5).to_pylist():
    print(f"look into {row['node']}: {row['probability']:.0%} sure")
print(f"{len(suspects)} suspects among {len(others)} others, {pc.sum(suspects['mule']).as_py()} of them rightly")

why = lg.explain(run, suspects["node"][0].as_py())
print(why.text(top_k=5))
Path("why.html").write_text(why.html(), encoding="utf-8")  # a picture of the neighbourhood, for a browser
