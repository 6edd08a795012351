"""LargeGT with scikit-learn's manners, on a small graph made here: python examples/sklearn_style.py"""

import numpy as np
import scipy.sparse
from sklearn.metrics import classification_report
from sklearn.model_selection import GridSearchCV, train_test_split

import largegt as lg

rng = np.random.default_rng(0)
labels = rng.integers(3, size=600)
topics = np.array(["art", "law", "zoo"])[labels]
ends = rng.integers(600, size=(2, 6000))
ends = ends[:, (labels[ends[0]] == labels[ends[1]]) | (rng.random(6000) < 0.2)]
adjacency = scipy.sparse.csr_matrix((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(600, 600))
features = rng.normal(size=(600, 8)) + 0.5 * labels[:, None]

nodes_train, nodes_test, y_train, y_test = train_test_split(np.arange(600), topics, stratify=topics, random_state=0)
settings = {"hidden_dim": 32, "epochs": 4, "batch_size": 128, "learning_rate": 0.02, "random_state": 0}
clf = lg.LargeGTClassifier(graph=adjacency, features=features, **settings)
search = GridSearchCV(clf, {"k": [8, 16]}, cv=2).fit(nodes_train, y_train)
print("best:", search.best_params_, f"{search.best_score_:.3f}")
print("test:", search.score(nodes_test, y_test))
print(classification_report(y_test, search.predict(nodes_test)))
