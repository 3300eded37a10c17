"""The pages a person would look at, opened in a real browser."""

import os
import shutil

import mlflow
import pytest
from campaigns import services
from playwright.sync_api import expect, sync_playwright

TIMEOUT_MS = 60_000
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def pages(undisturbed):
    with services(undisturbed) as addresses:
        yield addresses


@pytest.fixture
def page():
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium, "these tests look at pages: install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_OPTIONS)
        page = browser.new_page(viewport={"width": 1500, "height": 1100})
        page.set_default_timeout(TIMEOUT_MS)
        expect.set_options(timeout=TIMEOUT_MS)
        yield page
        if folder := os.environ.get("STAYER_SCREENSHOTS"):
            page.screenshot(path=f"{folder}/{page.title() or 'page'}.png".replace(" ", "-"))
        browser.close()


def test_the_prefect_page_shows_the_campaign_and_its_dag(page, pages, undisturbed):
    prefect_url, _ = pages
    run = undisturbed.run_of("small")
    campaign = run.events("campaign_started")[0]["flow_run"]
    page.goto(f"{prefect_url}/runs/flow-run/{campaign}")
    expect(page.get_by_text("Completed").first).to_be_visible()
    expect(page.locator(".run-graph canvas, canvas").first).to_be_visible()
    page.get_by_text("Subflow Runs").click()
    for stage in ("base-model", "prepare-data", "train", "evaluate-checkpoint"):
        expect(page.get_by_text(stage, exact=True).first).to_be_visible()


def test_the_mlflow_page_shows_the_runs_and_the_curves(page, pages, undisturbed):
    _, mlflow_url = pages
    client = mlflow.MlflowClient(mlflow_url)
    experiment = client.get_experiment_by_name("small").experiment_id
    name = undisturbed.run_of("small").run_id
    (parent,) = client.search_runs([experiment], f"attributes.run_name = '{name}'")
    page.goto(f"{mlflow_url}/#/experiments/{experiment}/runs")
    expect(page.get_by_text(name).first).to_be_visible()
    page.goto(f"{mlflow_url}/#/experiments/{experiment}/runs/{parent.info.run_id}/model-metrics")
    for curve in ("perplexity/domain", "perplexity/general", "loss", "learning_rate"):
        page.get_by_placeholder("Search metric charts").fill(curve)
        expect(page.get_by_text(curve).first).to_be_visible()


def test_the_report_draws_its_curves(page, undisturbed):
    page.goto((undisturbed.run_of("small").path / "report.html").as_uri())
    expect(page.get_by_text("Perplexity per checkpoint")).to_be_visible()
    assert page.locator(".scatterlayer .trace").count() == 5
