"""The assessment, torch: a serial script. Copy it, and make the copy run on several ranks:

    cp assessment.py my_script.py
    python -m examples.course.assess my_script.py --ranks 4

The copy must still take these options, and its rank 0 print the last line as it is here. `assess --help` describes
what is checked; lab2_torch.py shows how a script is converted.
"""

import argparse
from pathlib import Path

import torch
from data import load
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
parser.add_argument("--folder", help="of the data's files")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--checkpoint", type=Path, default="checkpoint.pt")
args = parser.parse_args()

torch.set_num_threads(1)
data = load(args.data, args.folder)


def images(x, y):
    """A data set of torch, whose images have their channels first."""
    return TensorDataset(torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y))


train, validation = images(data.train_x, data.train_y), images(data.test_x, data.test_y)
channels, side = data.train_x.shape[3], data.train_x.shape[1]
model = nn.Sequential(
    nn.Conv2d(channels, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * (side // 2) ** 2, 64),
    nn.ReLU(),
    nn.Linear(64, data.classes),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loader = DataLoader(train, batch_size=32, shuffle=True)

for epoch in range(args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "epoch": epoch}, args.checkpoint)
    print(f"epoch {epoch} is done", flush=True)


@torch.no_grad()
def accuracy(dataset):
    hits = sum((model(x).argmax(1) == y).sum() for x, y in DataLoader(dataset, batch_size=500))
    return hits / len(dataset)


print(f"training accuracy {accuracy(train):.4f}  validation accuracy {accuracy(validation):.4f}")
