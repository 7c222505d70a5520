"""roberta-base with the Trainer of transformers, 2 sequences of 16 tokens a step: what optimum-benchmark trains every day (measured.json).

    python roberta.py
"""
import tempfile

import torch
import transformers

LENGTH = 16
STEPS = 5


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * STEPS

    def __getitem__(self, index):
        return {"input_ids": torch.randint(3, 50265, (LENGTH,)), "attention_mask": torch.ones(LENGTH, dtype=torch.long), "labels": 0}


def main():
    config = transformers.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
    model = transformers.RobertaForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        options = transformers.TrainingArguments(folder, max_steps=STEPS, per_device_train_batch_size=2, optim="adamw_torch", save_strategy="no",
                                                 report_to="none", disable_tqdm=True)
        transformers.Trainer(model, options, train_dataset=Data()).train()


if __name__ == "__main__":
    main()
