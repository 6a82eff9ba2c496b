{{- /*
Parts that the pods of all kinds of nodes share. The name of a pod is the name of its node, and the Job `provision` has
created the credentials of that name.
*/}}

{{- /* The objects beside the StatefulSet. Takes (list context kind). */}}
{{- define "tangram.nodeObjects" -}}
{{- $context := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $name := printf "%s-%s" (include "tangram.fullname" $context) $kind -}}
{{- $labels := include "tangram.labels" . -}}
{{- $selector := include "tangram.selectorLabels" . -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
automountServiceAccountToken: false
---
# A StatefulSet needs one. Managers advertise the address of their pod.
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- $selector | nindent 4 }}
  ports:
    - {name: http, port: {{ include "tangram.nodePort" $kind }}, targetPort: http}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{- $labels | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- $selector | nindent 6 }}
{{- end }}

{{- define "tangram.nodePort" -}}
{{- get (dict "cpu" "8703" "gpu" "8704" "api" "8705") . -}}
{{- end }}

{{- /* The start of a StatefulSet's spec. Takes (list context kind). */}}
{{- define "tangram.nodeSet" -}}
{{- $context := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $values := index $context.Values $kind -}}
serviceName: {{ include "tangram.fullname" $context }}-{{ $kind }}
{{- if not $values.externalScaling }}
replicas: {{ int $values.replicas }}
{{- end }}
podManagementPolicy: Parallel
# A pod is replaced when you delete it, so that an upgrade ends no environments by itself.
updateStrategy: {type: OnDelete}
selector:
  matchLabels: {{- include "tangram.selectorLabels" . | nindent 4 }}
{{- end }}

{{- /* The metadata of a pod. */}}
{{- define "tangram.nodeMetadata" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
labels: {{- include "tangram.selectorLabels" . | nindent 2 }}
{{- with $values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* The start of a pod's spec. After a drain, the manager has 30 s to report the last results and 30 s to stop. */}}
{{- define "tangram.nodePod" -}}
{{- $context := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $values := index $context.Values $kind -}}
serviceAccountName: {{ include "tangram.fullname" $context }}-{{ $kind }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add (int $values.drainSeconds) 60 }}
{{- include "tangram.pullSecrets" $context }}
{{- with $values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- include "tangram.placement" $values }}
{{- end }}

{{- /* At most one node of this kind for each machine. */}}
{{- define "tangram.onePerMachine" -}}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "tangram.selectorLabels" . | nindent 10 }}
{{- end }}

{{- define "tangram.nodeNameEnv" -}}
- name: TANGRAM_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}

{{- /* The environment of a manager. Takes (list context kind env): `env` has its own settings. */}}
{{- define "tangram.managerEnv" -}}
{{- $context := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $port := include "tangram.nodePort" $kind -}}
{{- $common := dict "TANGRAM_HOST" (include "tangram.listenHost" $context) "TANGRAM_PORT" $port "TANGRAM_SECRETS_DIR" "/secrets" "TANGRAM_SPOOL_DIR" "/spool" "TANGRAM_SCHEDULER_URL" (printf "http://%s-scheduler:8702" (include "tangram.fullname" $context)) "TANGRAM_ADVERTISE_URL" (printf "http://%s:%s" (include "tangram.podAddress" $context) $port) -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{ include "tangram.nodeNameEnv" $context }}
{{- include "tangram.env" (merge (deepCopy (index $context.Values $kind).env) $common (index . 2)) }}
{{- end }}

{{- /* A container that copies this node's credentials, and no other's, to /secrets. It reopens a drained node. */}}
{{- define "tangram.prepare" -}}
{{- $context := index . 0 -}}
- name: prepare
  image: {{ include "tangram.image" (list $context (default dict (index . 2))) }}
  imagePullPolicy: {{ $context.Values.image.pullPolicy }}
  command: [python, /chart/node.py, prepare]
  env: {{- include "tangram.nodeNameEnv" $context | nindent 4 }}
  resources: {{- include "tangram.guaranteed" (dict "cpu" "100m" "memory" "128Mi") | nindent 4 }}
  securityContext: {{- include "tangram.containerSecurity" $context | nindent 4 }}
  volumeMounts:
    - {name: all-secrets, mountPath: /all-secrets, readOnly: true}
    - {name: secrets, mountPath: /secrets}
    - {name: chart, mountPath: /chart, readOnly: true}
    - {name: tmp, mountPath: /tmp}
{{- end }}

{{- /* Stops new work, and waits until the node is empty. Takes the values of the kind. */}}
{{- define "tangram.drain" -}}
preStop:
  exec:
    command: [python, /chart/node.py, drain, --deadline, {{ int .drainSeconds | quote }}]
{{- end }}

{{- define "tangram.nodeVolumes" -}}
{{- $context := index . 0 -}}
{{- $full := include "tangram.fullname" $context -}}
- name: all-secrets
  secret: {secretName: {{ $full }}-{{ index . 1 }}, defaultMode: 0440}
- name: secrets
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: chart
  configMap: {name: {{ $full }}-node}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 256Mi}
# Results that wait for Postgres. They outlive the container and end with the pod.
- name: spool
  emptyDir: {}
{{- end }}
