"""Render a profile as KubeRay's RayService: a Ray cluster with token authentication, and a model as a Serve application."""

from __future__ import annotations

from math import ceil

from slotwise import __version__
from slotwise.profiles.profile import Profile, load_profile

RAY = "2.60.0"
MODEL = "digits"  # what the image carries
FILE = "k8s/ray/rayservice.yaml"

TEMPLATE = """\
# The profile {profile} as a RayService, rendered by `slotwise profile render`: change profiles/{profile}.toml.
# Needs the KubeRay operator 1.5.1 or newer (authOptions), and an image with Ray: docker build --build-arg EXTRAS=onnx,ray
apiVersion: ray.io/v1
kind: RayService
metadata:
  name: slotwise
  labels: {{app.kubernetes.io/name: slotwise-ray}}
spec:
  excludeHeadPodFromServeSvc: true
  upgradeStrategy: {{type: NewCluster}}
  serveConfigV2: |
    proxy_location: EveryNode
    http_options: {{host: 0.0.0.0, port: 8000}}
    applications:
      - name: slotwise-front
        route_prefix: /
        import_path: slotwise.server.ray.app:front
      - name: {model}
        route_prefix: /predictions/{model}
        import_path: slotwise.server.ray.app:model
        args: {{archive: /models/{model}.mar, profile: {profile}}}
  rayClusterConfig:
    rayVersion: "{ray}"
    authOptions: {{mode: token}}
    enableInTreeAutoscaling: {autoscaling}
    headGroupSpec:
      rayStartParams: {{num-cpus: "0"}}
      template:
        spec:
          automountServiceAccountToken: {autoscaling}
          securityContext: &pod
            runAsNonRoot: true
            runAsUser: 10001
            runAsGroup: 10001
            fsGroup: 10001
            seccompProfile: {{type: RuntimeDefault}}
          containers:
            - name: ray-head
              image: slotwise:{version}-ray
              ports:
                - {{name: gcs, containerPort: 6379}}
                - {{name: dashboard, containerPort: 8265}}
                - {{name: serve, containerPort: 8000}}
              resources:
                requests: {{cpu: "1", memory: 3Gi}}
                limits: {{cpu: "2", memory: 3Gi}}
              securityContext: &restricted
                allowPrivilegeEscalation: false
                capabilities: {{drop: [ALL]}}
    workerGroupSpecs:
      - groupName: replicas
        replicas: {workers}
        minReplicas: {workers}
        maxReplicas: {most}
        rayStartParams: {{}}
        template:
          spec:
            automountServiceAccountToken: false
            securityContext: *pod
            containers:
              - name: ray-worker
                image: slotwise:{version}-ray
                ports:
                  - {{name: serve, containerPort: 8000}}
                resources:
                  requests: {{cpu: "{cores}", memory: 3Gi}}
                  limits: {{cpu: "{cores}", memory: 3Gi{gpu}}}
                securityContext: *restricted
---
# In: predictions, and Ray's own pods among themselves. Whoever reaches Ray's other ports runs anything, but for the token.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: slotwise-ray
  labels: {{app.kubernetes.io/name: slotwise-ray}}
spec:
  podSelector:
    matchLabels: {{ray.io/is-ray-node: "yes"}}
  policyTypes: [Ingress]
  ingress:
    - ports: [{{port: 8000, protocol: TCP}}]
    - from:
        - podSelector:
            matchLabels: {{ray.io/is-ray-node: "yes"}}
        - namespaceSelector: {{}}
          podSelector:
            matchLabels: {{app.kubernetes.io/name: kuberay-operator}}
"""


def rendered(name: str = "cpu") -> dict[str, str]:
    """The file by its path."""
    return {FILE: ray_service(load_profile(name, environ={}, cores=0))}


def ray_service(profile: Profile, model: str = MODEL) -> str:
    """The manifest: as many worker pods as replicas fit on, a pod of max(num_cpus, 2) cores, which holds one or more."""
    replicas = profile.on("ray").initial_workers
    cores = max(2, ceil(profile.num_cpus))
    each = max(1, int(cores // profile.num_cpus)) if profile.num_cpus else 1
    return TEMPLATE.format(
        profile=profile.name,
        model=model,
        ray=RAY,
        version=__version__,
        autoscaling=str(bool(profile.max_replicas)).lower(),
        workers=ceil(replicas / each),
        most=ceil(max(replicas, profile.max_replicas) / each),
        cores=cores,
        gpu=f', nvidia.com/gpu: "{ceil(profile.num_gpus)}"' if profile.num_gpus else "",
    )
