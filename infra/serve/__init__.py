from infra.serve.servers import POOL, mlflow_server, prefect_api, prefect_worker
from infra.serve.together import Services, up

__all__ = ["POOL", "Services", "mlflow_server", "prefect_api", "prefect_worker", "up"]
