"""Scenes and their questions: one answer each, the same for the same seed, none of the training in the exam."""

from random import Random

import numpy as np
import pytest

from engine.demo.location import demo_folder, vision_folder
from tools.demo_vision.exam import KINDS, held_out
from tools.demo_vision.model import SIDE, TOKENS, tokenizer_with_images, with_images
from tools.demo_vision.scenes import COLOURS, SHAPES, Scene, draw_scene, questions
from tools.demo_vision.train import IGNORED, SCENES, conversation, pixels, training_scenes


def test_the_same_seed_draws_the_same_scene() -> None:
    first, second = (draw_scene(Random("a")) for _ in range(2))
    assert np.array_equal(np.asarray(first.image), np.asarray(second.image)) and first.items == second.items


def test_a_question_has_one_answer() -> None:
    for number in range(60):
        rng = Random(number)
        found = questions(draw_scene(rng), rng)
        texts = [question.text for question in found]
        assert len(texts) == len(set(texts)) >= 3
        assert {question.kind for question in found} <= set(KINDS)


def test_answers_tell_what_is_drawn() -> None:
    for number in range(60):
        rng = Random(number)
        scene = draw_scene(rng)
        answers = {question.text: question.answer for question in questions(scene, rng)}
        count = len(scene.items)
        assert answers["How many shapes are there?"].split()[2] == (str(count) if count else "no")
        for item in scene.items:
            assert answers[f"What is {item.place}?"].endswith(f" {item.colour} {item.shape}.")
            assert item.colour in COLOURS and item.shape in SHAPES
        if scene.written:
            assert answers["What does it say?"] == f"It says {scene.written}."


def test_no_scene_of_the_training_is_in_the_exam() -> None:
    """Pixel by pixel, also at the model's size: the first 200 of the exam, and every 40th step of 1,000."""
    steps = [training_scenes(1, step) for step in range(0, 1000, 40)]
    trained = [scene for step in steps for scene, _ in step]
    examined = [held_out(number)[0] for number in range(200)]
    assert len(trained) == 25 * SCENES
    assert values(trained).isdisjoint(values(examined))
    assert len(values(examined)) == 2 * len(examined)


def values(scenes: list[Scene]) -> set[bytes]:
    """Of each scene its own pixels, and those that the model sees of it."""
    images = [scene.image for scene in scenes]
    return {each.tobytes() for each in (*images, *(image.resize((SIDE, SIDE)) for image in images))}


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_the_exam_asks_for_every_kind_in_turn(number: int) -> None:
    assert held_out(number)[1].kind == KINDS[number]


def test_what_is_learned_is_the_answers() -> None:
    tokenizer = tokenizer_with_images()
    scene, rng = training_scenes(1, 0)[0]
    ids, targets = conversation(tokenizer, scene, rng)
    assert ids.count(tokenizer.token_to_id("<IMG_CONTEXT>")) == TOKENS
    learned = tokenizer.decode([target for target in targets if target != IGNORED], skip_special_tokens=False)
    assert learned.count("<|im_end|>") == 3 + (learned.count("<|im_end|>") == 4)
    assert pixels([scene.image]).shape == (1, 3, 80, 80)


def test_the_folder_is_whole_and_small() -> None:
    files = {path.name: path.stat().st_size for path in vision_folder().iterdir()}
    assert files["model.safetensors"] <= 12_000_000 and "README.md" in files


def test_the_template_is_the_chat_model_s_with_images_first() -> None:
    import json

    plain, seeing = (
        json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
        for folder in (demo_folder(), vision_folder())
    )
    assert seeing == with_images(plain)
